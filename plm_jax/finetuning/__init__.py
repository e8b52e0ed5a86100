"""Fine-tuning: from a configuration and labeled examples to a run, and predictions of its model.

    setup          read examples, and resolve the options that depend on them
    feed           batches of a run, evaluation of development sets, cached features
    augmentation   batches with data augmentation
    teacher        vectors of a teacher model as targets
    word_vectors   vocabulary and initial word vectors of tasks on an ELMo
    predict        predictions of a fine-tuned model
"""
