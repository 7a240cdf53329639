"""The Python API: what `import muxcluster` offers, each name imported when it is first used."""
