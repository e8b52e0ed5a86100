"""Model families as data: sizes with their papers, and the rules that convert released checkpoints.

Each module has functions that return a configuration, such as `bert.base`, and a `FAMILY`
(`models.rules`) with the attributes, tensors and heads of the other library. `families` is the
registry by model_type. Models import layers and architectures, and nothing above them: neither
objectives nor training.
"""
