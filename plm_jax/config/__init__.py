"""Configuration of a run, and its JSON form.

    run            dataclasses of a run, their checks, and what may change on resume
    serialization  config.json, its format number and migrations

Modules here may import objectives and tasks, but not training.
"""
