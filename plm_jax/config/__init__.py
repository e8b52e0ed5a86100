"""Configuration of a run, and its JSON form (level 6).

    run            dataclasses of a run, their checks, and what may change on resume
    serialization  config.json, its format number and migrations

Modules here may import objectives, tasks and all levels below, but not training.
"""
