"""Downstream tasks: labelled text, and fine-tuning on it.

    fine_tuning  the loop of fine-tuning
    forms        rows of labelled text, as each family takes them
"""
