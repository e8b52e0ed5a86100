"""Compile the train step for a TPU pod that is not attached.

    report  compile the step; report memory, FLOPs, traffic, collectives and roofline bounds
    hlo     the analysis of the compiled program's HLO text
    search  find the mesh with the lowest bound
"""
