"""The version of hlo-run."""

VERSION = "0.1.0"
