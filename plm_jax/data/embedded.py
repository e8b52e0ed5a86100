def corpus_path(): raise NotImplementedError
