"""Downstream tasks: what was pre-trained is put to use.

    examples, reading, sources, tags, embedded   labelled examples, and where they come from
    table, settings                              the field's tasks and the published settings, as data
    contract, sequence, tagging, answers, choice what a task is; a file for each kind
    forms                                        how families take texts
    batches, feed, setup                         from examples to a run
    metrics, predict                             what a model says, and how good that is
    asked, words, results, measuring, imported   texts in and names out; tasks of other libraries' checkpoints
    regularize, augment                          more than the right answer is asked, of more than the text
"""
