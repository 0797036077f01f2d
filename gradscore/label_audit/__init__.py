"""An audit of labels: which samples have a label that may be wrong, and why.

In come a model and labelled samples, or a configuration (`audits`); out comes an `Audit`, a table of all samples
ranked, with the evidence for each, and its files: CSV, Parquet, and a gallery to click through. `ranking` puts together
what last layers fitted to the other samples (`last_layers`), the network, its gradients and neighbours say; `noise`
estimates how many labels are wrong.
"""

from __future__ import annotations

from .audits import FILES, audit, audit_config, audited_features, write_audit
from .ranking import Audit, ranked
