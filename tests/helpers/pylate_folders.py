"""Small folders of PyLate, written by the library itself.

`python tests/helpers/pylate_folders.py` writes the folders in tests/fixtures/pylate. It needs
PyLate. Each case has a small random model as PyLate saves it, in `model`; texts, in texts.json; and
in outputs.npz the vectors of the tokens of each query and document, the scores of all pairs, the
losses Contrastive and Distillation, and their gradients of the dense layer.
"""
import json
import pathlib
import shutil
import tempfile

import numpy as np
from pylate import losses, models, scores
from tokenizers import ByteLevelBPETokenizer
import torch
from transformers import (
  BertConfig,
  BertModel,
  BertTokenizer,
  RobertaConfig,
  RobertaModel,
  RobertaTokenizer,
)

QUERIES = ['how to sort a list?', 'the mean of an array', 'a']
DOCUMENTS = [  # two for each query, the second one is a negative
    'Sorts a list, in place.', 'Returns the length of a list!',
    'Computes the mean (the average) of the array.',
    'the array is sorted; it is not copied, and the list of all of the arrays is returned to it',
    'a-b', '...']
TEACHER = [[3.0, 1.0], [2.5, -1.0], [0.5, 0.25]]
SIZES = {'num_hidden_layers': 2, 'hidden_size': 16, 'num_attention_heads': 2,
         'intermediate_size': 32, 'initializer_range': 0.3}
CASES = {
    'bert': {}, 'bert_without_expansion': {
        'do_query_expansion': False, 'query_prefix': '', 'document_prefix': '',
        'skiplist_words': ['the', 'of']},
    'roberta_attends': {
        'attend_to_expansion_tokens': True, 'query_prefix': '[unused0]',
        'document_prefix': '[unused1]'}}
FOLDER = pathlib.Path(__file__).parent.parent / 'fixtures' / 'pylate'


def write_bert(folder):
  """Write a small BERT with its tokenizer, which lacks some punctuation."""
  letters = 'abcdefghilmnoprstuwy'
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'.,!?()-;', 'the', 'a', 'list', 'array',
            'sort', '##s', 'mean', 'of', *letters, *(f'##{letter}' for letter in letters)]
  (folder / 'vocab.txt').write_text('\n'.join(dict.fromkeys(pieces)) + '\n')
  tokenizer = BertTokenizer(str(folder / 'vocab.txt'))
  config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **SIZES)
  BertModel(config).save_pretrained(folder)
  tokenizer.save_pretrained(folder)


def write_roberta(folder):
  """Write a small RoBERTa with byte-level BPE."""
  trained = ByteLevelBPETokenizer()
  trained.train_from_iterator(
      QUERIES + DOCUMENTS, 300, special_tokens=['<s>', '<pad>', '</s>', '<unk>', '<mask>'])
  trained.save_model(str(folder))
  tokenizer = RobertaTokenizer.from_pretrained(folder)
  config = RobertaConfig(
      vocab_size=len(tokenizer), max_position_embeddings=42, type_vocab_size=1, pad_token_id=1,
      bos_token_id=0, eos_token_id=2, **SIZES)
  RobertaModel(config).save_pretrained(folder)
  tokenizer.save_pretrained(folder)


def write_case(name):
  """Write one case."""
  folder, options = FOLDER / name, CASES[name]
  torch.manual_seed(0)
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  with tempfile.TemporaryDirectory() as encoder:
    (write_bert if 'roberta' not in name else write_roberta)(pathlib.Path(encoder))
    model = models.ColBERT(
        encoder, embedding_size=8, query_length=14, document_length=20, device='cpu', **options)
    model.save_pretrained(str(folder / 'model'), create_model_card=False)
  model = models.ColBERT(str(folder / 'model'), device='cpu')
  outputs = {}
  for kind, texts in ('query', QUERIES), ('document', DOCUMENTS):
    # One by one, so that nothing depends on the padding of a batch.
    for number, text in enumerate(texts):
      outputs[f'{kind}/{number}'] = model.encode([text], is_query=kind == 'query')[0]
  vectors = [[outputs[f'{kind}/{number}'] for number in range(len(texts))]
             for kind, texts in (('query', QUERIES), ('document', DOCUMENTS))]
  outputs['scores'] = np.array([
      [scores.colbert_scores(query[None], document[None])[0, 0].item() for document in vectors[1]]
      for query in vectors[0]])
  model.eval()  # without dropout
  query = model.tokenize(QUERIES, is_query=True, pad=True)
  documents = [model.tokenize(DOCUMENTS[first::2], is_query=False, pad=True) for first in (0, 1)]
  every, teacher = model.tokenize(DOCUMENTS, is_query=False, pad=True), torch.tensor(TEACHER)
  kinds = {
      'contrastive': (losses.Contrastive(model), documents, None),
      'kl': (losses.Distillation(model, normalize_scores=False), [every], teacher),
      'kl_min_max': (losses.Distillation(model), [every], teacher)}
  for kind, (loss, others, labels) in kinds.items():
    model.zero_grad()
    value = loss([dict(query), *map(dict, others)], labels)
    value.backward()
    outputs[kind] = value.item()
    outputs[f'gradient/{kind}'] = model[1].linear.weight.grad.numpy().copy()
  np.savez(folder / 'outputs.npz', **outputs)
  texts = {'queries': QUERIES, 'documents': DOCUMENTS, 'teacher': TEACHER}
  (folder / 'texts.json').write_text(json.dumps(texts, indent=1) + '\n')


if __name__ == '__main__':
  for case in CASES:
    write_case(case)
