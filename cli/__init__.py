"""The command line: one thin file per command over an importable function of the library.

The folder is called `cli` in the repository, and the package `gradscore_cli` where it is installed, since a package
called `cli` could not live beside others. `main` has the application and what becomes of errors, `options` and
`output` what several commands share.
"""
