"""Checkpoints of a run and their checksums (level 1).

    checkpoint  save, resume and restore, by Orbax
    checksums   CRC32C of the files of a checkpoint

Imports level 0 alone: a checkpoint is a tree of arrays and a JSON object.
"""
