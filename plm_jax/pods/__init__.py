"""Many hosts, and accelerators that are not there.

    hosts    processes of a job: how they meet, share a folder and end together
    compile  the step of a run, compiled for a TPU pod; hlo: what the compiler's text says; search: for
             the best mesh
"""
