"""Checkpoints of a run and their checksums.

    checkpoint  save, resume and restore, by Orbax
    checksums   CRC32C of the files of a checkpoint

Knows no models: a checkpoint is a tree of arrays and a JSON object.
"""
