"""Drivers: a run from its configuration to its report.

    run        the driver: checks, training, and the modes evaluate, prepare and compile
    pretrain   text as token records, and samples for the report
    finetune   labeled examples
    preflight  checks before the first step
    conclude   samples, report and printed results
    inspect    the first batches of a run, without training

Modules here may import all packages but `api` and `cli`.
"""
