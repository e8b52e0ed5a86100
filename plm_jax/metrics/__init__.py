"""Metrics of the field: labels, tags, extractive QA, retrieval and generated text.

    tasks         accuracy, F1, correlations, confusion matrix, entity F1, extractive QA
    multilabel    F1 averages and average precision of several labels, thresholds
    tag_schemes   BIO, IOB1, BIOES, BILOU and BMES tags of chunks
    generation    ROUGE, BLEU, chrF, exact match and F1 of generated text
    embeddings    retrieval and whitening of sentence embeddings
    nearest       exact nearest-neighbor search
"""
