"""Downstream tasks: fine-tune a pre-trained model on labeled examples.

    sources                                       labeled examples of files and data sets
    features                                      rows of token ids, made of examples
    example_formats, tagging_format, ranking_format
                                                  how the examples of a kind are read and printed
    labeled_data                                  data sets: examples with features
    registry                                      published tasks, as data
    contract                                      what a task is
    kinds                                         the kinds of tasks by name
    sequence_classification, token_classification, extractive_qa, multiple_choice,
    sentence_embedding, multilabel, reranking, elmo
                                                  kinds of tasks
    grouped_rows                                  tasks with several rows per example
    embedding_losses, ranking_losses, regularizers
                                                  losses
    text_augmentation                             easy data augmentation
    input_formats, batches                        from examples to batches
    outputs                                       predictions with label names, and their metrics
    bm25                                          ranking by shared words
    baselines                                     majority-class and TF-IDF baselines
"""
