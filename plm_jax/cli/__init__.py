"""Command line: parse arguments, call the public API or a run, print results.

    main       the entry point: help, version and suggestions, without JAX
    catalog    groups, usage and examples of the commands; spellings of other libraries
    help       help texts; signatures: arguments and options, read from source code
    commands   from the name of a command to its function, whose module is imported only then
    inputs     the model and the texts that arguments name
    run        from the command line of a recipe to a run; finetune: of a task
    options    how options are spelled and parsed
    doctor     checks before a run; show: options and layers; inspect: model inputs
    verify     whether the files of a folder are undamaged

Modules here may import all packages.
"""
