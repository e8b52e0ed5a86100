"""Load trained models, of runs and of other libraries' checkpoints, without optimizer.

    build              the model of a run, and the shapes of its parameters
    loaded_model       `LoadedModel`: a model that can be used, or trained further
    device_params      its parameters on the device, copied there once
    generation_config  how its checkpoint wants texts to be generated

Training and inference import it.
"""
