"""Projections of the gradients of many samples: their products, the nearest of them, and their folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter

from ..errors import EvaluationError, StoreError
from ..store import ShardRows, differences, package_versions, read_shard, shard_path, write_shard
from ..system import (
    FloatArray,
    IntArray,
    checked,
    file_sha256,
    is_leftover,
    is_whole,
    parse_document,
    write_text,
    writing,
)

Similarity = Literal["cosine", "dot"]

PRODUCTS_AT_A_TIME = 1024
"""Rows of products that are computed at a time: 32 MiB of float64 for 4,096 numbers each."""


@dataclass(frozen=True, kw_only=True)
class About:
    """Settings of a projection: what was projected, and how.

    Attributes:
        dim: numbers for each sample.
        seed: of what is random.
        loss: what the loss is called.
        parameters: shape of every parameter whose gradient is projected, by name.
        weights_sha256: hash of all parameters and buffers of the model.
        precision: "float32" or "float64", of the values.
        network: the code and settings of the model and its preprocessing; None where a program gave the model.
    """

    dim: int
    seed: int
    loss: str
    parameters: dict[str, list[int]]
    weights_sha256: str
    precision: Literal["float32", "float64"]
    network: dict[str, Any] | None = None

    def check_comparable(self, other: About) -> None:
        """Makes sure that products of projections are those of gradients.

        Raises:
            EvaluationError: the two were projected with different matrices, or are gradients of different networks.
        """
        mine, theirs = asdict(self), asdict(other)
        words = {"parameters": "parameters", "weights_sha256": "the weights of the model"}  # where values say little
        for name in ("dim", "seed", *words):
            if mine[name] != theirs[name]:
                shown = words.get(name) or f"{name} ({mine[name]!r} and {theirs[name]!r})"
                raise EvaluationError(
                    f"these projections differ in {shown}, so their products mean nothing; project both alike"
                )
        changed = differences(other.network, self.network) if other.network and self.network else []
        if changed:
            raise EvaluationError(
                f"these projections differ in the network ({changed[0]}), so their products mean nothing; project "
                "both alike"
            )


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The nearest of M samples, for each of N.

    Attributes:
        places: (N, count) int64 among the M, nearest first.
        similarities: (N, count) float64, cosines or products; higher is nearer.
    """

    places: IntArray
    similarities: FloatArray


@dataclass(frozen=True, kw_only=True)
class Projections:
    """The projections of N samples: `values * scale[:, None]`.

    Attributes:
        values: (N, dim) in the precision of the network, float32 at least.
        scale: (N,) float64, powers of two, which keep gradients that float32 cannot hold.
        sample_ids: N names.
        labels: (N,) int64, -1 for none.
        predictions: (N,) int64.
        content_hashes: N hashes of the samples' content.
        about: what was projected, and how.
        notices: what was skipped, computed the slow way, or came out as no number, and why.
    """

    values: NDArray[np.float32] | FloatArray
    scale: FloatArray
    sample_ids: Sequence[str]
    labels: IntArray
    predictions: IntArray
    content_hashes: Sequence[str]
    about: About
    notices: Sequence[str] = ()

    @classmethod
    @checked
    def concatenated(cls, parts: Sequence[Projections]) -> Projections:
        """The samples of one or more projections that were made alike, one part after the other; without notices.

        Raises:
            EvaluationError: there are none.
        """
        if not parts:
            raise EvaluationError("parts: wanted projections to put one after the other, got none")
        return cls(
            values=np.concatenate([each.values for each in parts]),
            scale=np.concatenate([each.scale for each in parts]),
            sample_ids=[name for each in parts for name in each.sample_ids],
            labels=np.concatenate([each.labels for each in parts]),
            predictions=np.concatenate([each.predictions for each in parts]),
            content_hashes=[name for each in parts for name in each.content_hashes],
            about=parts[0].about,
        )

    def __repr__(self) -> str:
        """Description of what was projected, and how, in one line."""
        about = self.about
        return f"Projections(N={len(self)}, dim={about.dim}, loss={about.loss!r})"

    def __len__(self) -> int:
        """N, the number of samples."""
        return len(self.values)

    @property
    def norms(self) -> FloatArray:
        """(N,) float64, the L2 norms of the projections: about those of the gradients."""
        return self._own_norms() * self.scale

    @checked
    def dot(self, other: Projections | None = None) -> FloatArray:
        """Products of projections: on average over seeds those of the gradients.

        Args:
            other: M samples; these samples themselves by default.

        Returns:
            (N, M) float64.

        Raises:
            EvaluationError: the two were projected in different ways.
        """
        that = self._comparable(other)
        return np.concatenate(list(self._products(that, self.scale, that.scale)))

    @checked
    def cosines(self, other: Projections | None = None) -> FloatArray:
        """Cosines between projections, 0 where one of the two is zero.

        Args:
            other: M samples; these samples themselves by default.

        Returns:
            (N, M) float64 in [-1, 1].

        Raises:
            EvaluationError: the two were projected in different ways.
        """
        that = self._comparable(other)
        return np.concatenate(list(self._products(that, self._inverse_norms(), that._inverse_norms()))).clip(-1, 1)

    @checked
    def nearest(
        self, queries: Projections | None = None, *, count: int = 10, similarity: Similarity = "cosine"
    ) -> Nearest:
        """The samples of these whose gradients are most like those of others.

        Args:
            queries: M samples to find neighbours of; these samples themselves by default. None is its own neighbour:
                a sample of the same name and content is left out.
            count: how many neighbours; as many as there are for each of the queries, where these are fewer.
            similarity: "cosine", or "dot" for products, which large gradients win.

        Returns:
            For each of the queries; of equal similarities the first sample is nearer.

        Raises:
            EvaluationError: the two were projected in different ways, another count, or a query that is not finite.
        """
        if not is_whole(count) or count < 1:
            raise EvaluationError(f"count: wanted 1 neighbour or more, got {count!r}")
        asking = self._comparable(queries)
        if not (finite := np.isfinite(asking.values).all(axis=1)).all():
            first = int(finite.argmin())
            raise EvaluationError(
                f"query {first} (sample {asking.sample_ids[first]}): its projection is not finite, so nothing is near; "
                "leave such samples out of what is projected"
            )
        own, own_places = self.own_places(queries)
        wanted = min(count, len(self) - int(np.bincount(own).max(initial=0)))
        weights = [each._inverse_norms() if similarity == "cosine" else each.scale for each in (asking, self)]
        places, similarities, start = [], [], 0
        for found in asking._products(self, *weights):
            here = (own >= start) & (own < start + len(found))
            found[own[here] - start, own_places[here]] = -np.inf
            start += len(found)
            order = np.argsort(-found, axis=1, kind="stable")[:, :wanted]
            places.append(order)
            similarities.append(np.take_along_axis(found, order, axis=1))
        return Nearest(places=np.concatenate(places), similarities=np.concatenate(similarities))

    @checked
    def own_places(self, queries: Projections | None = None) -> tuple[IntArray, IntArray]:
        """Places of common samples, by name and content, among the queries and among these samples.

        Args:
            queries: M samples; these samples themselves by default.

        Returns:
            Places among the queries and among these samples, one pair for each time that one is there.
        """
        if queries is None:
            return np.arange(len(self)), np.arange(len(self))
        known: dict[tuple[str, str], list[int]] = {}
        for place, each in enumerate(zip(self.sample_ids, self.content_hashes, strict=True)):
            known.setdefault(each, []).append(place)
        named = zip(queries.sample_ids, queries.content_hashes, strict=True)
        pairs = [(query, place) for query, each in enumerate(named) for place in known.get(each, ())]
        found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _comparable(self, other: Projections | None) -> Projections:
        if other is None:
            return self
        self.about.check_comparable(other.about)
        return other

    def _products(self, other: Projections, one: FloatArray, another: FloatArray) -> Iterator[FloatArray]:
        """Products of rows times a number for each, some rows at a time."""
        columns = other.values.astype(np.float64).T
        for start in range(0, max(1, len(self)), PRODUCTS_AT_A_TIME):
            rows = slice(start, start + PRODUCTS_AT_A_TIME)
            yield self.values[rows].astype(np.float64) @ columns * one[rows, None] * another

    def _own_norms(self) -> FloatArray:
        """Norms of `values`."""
        squares = np.einsum("nd,nd->n", self.values, self.values, dtype=np.float64)
        return np.asarray(np.sqrt(squares), dtype=np.float64)

    def _inverse_norms(self) -> FloatArray:
        norms = self._own_norms()
        return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def nearest_table(
    bank: Projections, queries: Projections, *, count: int, similarity: Similarity, bank_name: str
) -> tuple[pd.DataFrame, list[str]]:
    """The samples of a bank whose gradients are most like those of others.

    Args:
        bank: where they are looked for.
        queries: what they are like.
        count: how many for each; fewer where there are fewer.
        similarity: as for `Projections.nearest`.
        bank_name: what messages call the bank.

    Returns:
        As many rows for each of the queries, in order: `sample_id`, `label` (-1 for none), `rank` (from 1),
        `nearest_sample_id`, `nearest_label`, `similarity` (higher is nearer); and what a reader should know of them.

    Raises:
        EvaluationError: as `Projections.nearest`.
    """
    found = bank.nearest(queries, count=count, similarity=similarity)
    rows, ranks = np.divmod(np.arange(found.places.size), found.places.shape[1])
    places = found.places.reshape(-1)
    table = pd.DataFrame(
        {
            "sample_id": np.asarray(queries.sample_ids, dtype=object)[rows],
            "label": queries.labels[rows],
            "rank": ranks + 1,
            "nearest_sample_id": np.asarray(bank.sample_ids, dtype=object)[places],
            "nearest_label": bank.labels[places],
            "similarity": found.similarities.reshape(-1),
        }
    )
    shared, there, notices = len(np.unique(bank.own_places(queries)[0])), found.places.shape[1], list[str]()
    if shared:
        notices.append(
            f"{shared} of {len(queries)} samples are in {bank_name} themselves, by name and content; none is its own "
            "nearest"
        )
    if bank.about.loss != queries.about.loss:
        notices.append(
            f"the gradients of {bank_name} are of the loss {bank.about.loss!r}, these of {queries.about.loss!r}: "
            "near are samples that would change the network alike by two different losses"
        )
    if there < count:
        beside = ", beside the sample itself" if shared else ""
        notices.append(f"{count} nearest samples were asked for, and {bank_name} has {there}{beside}")
    return table, notices


MANIFEST = "projections.json"

SCALE = "scale"


class ProjectionManifest(BaseModel):
    """Manifest of a folder of projections and its shards.

    Attributes:
        format: version of the layout of such folders.
        settings: what was projected, and how.
        versions: of the packages that computed.
        sha256: hash of every shard; none before all of them are there.
        notices: what a reader of the projections should know.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[4] = 4
    settings: About
    versions: dict[str, str]
    sha256: list[str] = []
    notices: list[str] = []


class ProjectionFolder:
    """A folder of projections.

    Args:
        path: the folder.
        manifest: what it says of its shards.
    """

    def __init__(self, path: Path, manifest: ProjectionManifest) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def read(cls, path: Path) -> ProjectionFolder:
        """A folder that is there.

        Raises:
            StoreError: there are no projections, or the manifest is damaged.
        """
        file = path / MANIFEST
        try:
            content = file.read_bytes()
        except OSError as error:
            raise StoreError(f"{file}: cannot be read ({error.strerror}); give a folder that project() wrote") from None
        again = "delete the folder and project again"
        return cls(
            path, parse_document(content, TypeAdapter(ProjectionManifest), where=file, error=StoreError, advice=again)
        )

    @classmethod
    def opened(cls, path: Path, about: About) -> ProjectionFolder:
        """Starts a folder, or goes on with one that was made with the same settings, weights and versions.

        Raises:
            StoreError: it was made with others.
        """
        now = ProjectionManifest(settings=about, versions=package_versions())
        if not (path / MANIFEST).exists():
            found = cls(path, now)
            found._write_manifest()
            return found
        found = cls.read(path)
        parts = {
            "settings": (asdict(found.manifest.settings), asdict(about)),
            "versions": (found.manifest.versions, now.versions),
        }
        for part, (before, after) in parts.items():
            changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            if changed:
                raise StoreError(
                    f"{path}: these projections were made with other {part} ({', '.join(changed)}); give another "
                    "folder, or delete this one"
                )
        return found

    @staticmethod
    def prepare(path: Path) -> None:
        """Makes a folder for projections, unless there is one.

        Raises:
            StoreError: something else is there, which is left untouched.
            OutputError: it cannot be made.
        """
        with writing(path):
            is_new = not path.exists() or (path.is_dir() and all(map(is_leftover, path.iterdir())))
            if not is_new and not (path / MANIFEST).is_file():
                raise StoreError(f"{path}: wanted a new or empty folder for projections, got something else")
            path.mkdir(parents=True, exist_ok=True)

    def has(self, number: int) -> bool:
        """Whether a shard is there already."""
        return shard_path(self.path, number).exists()

    def shard(self, number: int) -> Projections:
        """The projections of one shard.

        Raises:
            StoreError: it is missing or damaged.
        """
        table, about = read_shard(shard_path(self.path, number)), self.manifest.settings
        values = [table.column(name).to_numpy().astype(np.dtype(about.precision)) for name in _columns(about)]
        return Projections(
            values=np.stack(values, axis=1),
            scale=table.column(SCALE).to_numpy(),
            sample_ids=table.column("sample_id").to_pylist(),
            labels=table.column("label").to_numpy(),
            predictions=table.column("prediction").to_numpy(),
            content_hashes=table.column("content_hash").to_pylist(),
            about=about,
        )

    def write(self, number: int, found: Projections, *, split: str) -> None:
        """Writes a shard in one step."""
        rows = ShardRows(
            split=split,
            sample_ids=list(found.sample_ids),
            labels=found.labels,
            predictions=found.predictions,
            content_hashes=list(found.content_hashes),
            names=[SCALE, *_columns(found.about)],
            values=np.concatenate([found.scale[:, None], found.values], axis=1, dtype=np.float64),
            skipped=[],
        )
        write_shard(shard_path(self.path, number), rows)

    def finish(self, shards: int, *, notices: Sequence[str]) -> None:
        """Marks the folder as complete; `notices` say what a reader should know.

        Raises:
            StoreError: there are shards of more samples.
        """
        if self.has(shards):
            raise StoreError(
                f"{self.path}: there are projections of more samples than these; give another folder, or all samples"
            )
        hashes = [file_sha256(shard_path(self.path, number)) for number in range(shards)]
        self.manifest = self.manifest.model_copy(update={"sha256": hashes, "notices": list(notices)})
        self._write_manifest()

    def _write_manifest(self) -> None:
        write_text(self.path / MANIFEST, self.manifest.model_dump_json(indent=2) + "\n")


@checked
def load_projections(path: str | Path) -> Projections:
    """Reads the projections that `project` wrote.

    Args:
        path: the folder.

    Raises:
        StoreError: there are none, they are not finished, or a shard is missing, damaged or another one.
    """
    folder = ProjectionFolder.read(Path(path))
    hashes = folder.manifest.sha256
    if not hashes:
        raise StoreError(f"{path}: these projections are not finished; make the same call again, which goes on")
    shards = [folder.shard(number) for number in range(len(hashes))]
    for number, wanted in enumerate(hashes):
        file = shard_path(folder.path, number)
        if file_sha256(file) != wanted:
            raise StoreError(
                f"{file}: not the shard that was written here: damaged, or of another folder; delete it and make the "
                "same call again"
            )
    return replace(Projections.concatenated(shards), notices=folder.manifest.notices)


def _columns(about: About) -> list[str]:
    return [f"projection_{place:04d}" for place in range(about.dim)]
