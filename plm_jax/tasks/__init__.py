"""Downstream tasks: labelled text, and fine-tuning on it.

    sources      labelled examples of files and data sets, and what cannot be one
    table        tasks of the field by name; settings: how each family was fine-tuned on them
    answers      questions whose answers stand in a context
    metrics      of labels, chunks and answers, as the field's scorers have them
    fine_tuning  the loop of fine-tuning
    forms        rows of labelled text, as each family takes them
"""
