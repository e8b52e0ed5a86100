"""An entry to the BabyLM challenge: `python -m experiments.babylm COMMAND`, see `__main__`."""
