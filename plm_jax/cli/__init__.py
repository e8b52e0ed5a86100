"""What is typed: commands, runs and what they print.

    commands   those of `python -m plm_jax`
    run        from the command line of a recipe to a run
    options    how options are spelt and read; preflight: what is checked before a run begins
    report     the page of a run; curves: its figures over steps
    verify     whether what a folder holds is what was written to it
"""
