"""Small folders of sentence-transformers, written by the library itself.

`python tests/helpers/library_folders.py` writes the folders in
tests/fixtures/sentence_transformers, with the library's vectors and scores. It needs
sentence-transformers 6 and torch.
"""
import json
import pathlib
import shutil
from typing import Any

WORDS = 'abcdefghijklmnopqrstuvwxyz'
TEXTS = ['a', 'b c d', 'e f g h i', 'j k l m n o p q r s t u v w x y z a b c', 'y b']
QUERY = 'a c e'
DOCUMENTS = ['a c e', 'b', 'q r s t u v w x y z a b c d e f g h i j', 'z y']
PROMPTS = {'query': 'a b ', 'document': 'c d e '}
# Modules after the encoder, as (class, arguments), and settings.
BI_ENCODERS: dict[str, tuple[list[tuple[str, Any]], dict[str, Any]]] = {
    'poolings': ([('Pooling', ('cls', 'max', 'mean', 'mean_sqrt_len_tokens', 'weightedmean',
                               'lasttoken'))], {}),
    'order of poolings': ([('Pooling', ('mean', 'cls'))], {}),
    'dense layers': ([('Pooling', 'mean'), ('Dense', (8, 12, 'ReLU')), ('Dense', (12, 6, 'Tanh')),
                      ('Normalize', ())], {}),
    'prompts': ([('Pooling', 'mean')], {'prompts': PROMPTS, 'default_prompt_name': 'document'}),
    'prompts are not pooled': (
        [('Pooling, without prompts', ('cls', 'max', 'mean', 'weightedmean', 'lasttoken'))],
        {'prompts': PROMPTS, 'default_prompt_name': 'query'}),
    'dot': ([('Pooling', 'mean')], {'similarity_fn_name': 'dot'}),
    'euclidean': ([('Pooling', 'mean')], {'similarity_fn_name': 'euclidean'}),
    'manhattan': ([('Pooling', 'mean')], {'similarity_fn_name': 'manhattan', 'truncate_dim': 5}),
    'all': ([('Pooling, without prompts', ('cls', 'mean')), ('Dense', (16, 12, 'GELU')),
             ('Dense', (12, 8, 'Identity')), ('Normalize', ())],
            {'prompts': PROMPTS, 'default_prompt_name': 'document', 'similarity_fn_name': 'dot',
             'truncate_dim': 6})}


def write_encoder(folder: pathlib.Path, length: int, labels: int = 0) -> None:
  """Write a BERT of one layer, with a classifier if it has labels, and its tokenizer."""
  import torch
  from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast
  torch.manual_seed(0)
  vocab = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]
  config = BertConfig(
      vocab_size=len(vocab), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
      intermediate_size=16, max_position_embeddings=24, initializer_range=0.5,
      num_labels=labels or 2)
  model = (BertForSequenceClassification if labels else BertModel)(config)
  model.save_pretrained(folder)
  (folder / 'vocab.txt').write_text('\n'.join(vocab) + '\n')
  BertTokenizerFast(str(folder / 'vocab.txt'), model_max_length=length).save_pretrained(folder)


def write_bi_encoder(folder: pathlib.Path, name: str) -> Any:
  """Write a folder of `BI_ENCODERS`, and return the model."""
  from sentence_transformers import SentenceTransformer
  from sentence_transformers.sentence_transformer import modules as library
  import torch
  write_encoder(folder.with_name('encoder'), 10)
  modules: list[Any] = [library.Transformer(str(folder.with_name('encoder')))]
  described, settings = BI_ENCODERS[name]
  for kind, arguments in described:
    if kind.startswith('Pooling'):
      modules.append(library.Pooling(8, arguments, include_prompt=kind == 'Pooling'))
    elif kind == 'Dense':
      size, output, activation = arguments
      modules.append(library.Dense(
          size, output, bias=activation != 'Identity',
          activation_function=getattr(torch.nn, activation)()))
    else:
      modules.append(library.Normalize())
  model = SentenceTransformer(modules=modules, device='cpu', **settings)
  model.save(str(folder), create_model_card=False)
  return model


def write_sparse_encoder(
    folder: pathlib.Path, kind: str, pooling: str, activation: str, routed: bool = False) -> Any:
  """Write a SparseEncoder of a BERT or RoBERTa of one layer, and return the model.

  routed: queries have fixed weights of their tokens.
  """
  from sentence_transformers import SparseEncoder
  from sentence_transformers.sparse_encoder import modules as library
  from tokenizers import pre_tokenizers
  import torch
  from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizerFast,
  )
  torch.manual_seed(0)
  encoder = folder.with_name('encoder')
  encoder.mkdir()
  sizes = {'hidden_size': 8, 'num_hidden_layers': 1, 'num_attention_heads': 2,
           'intermediate_size': 16, 'max_position_embeddings': 24, 'initializer_range': 0.5}
  if kind == 'bert':
    vocab = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]
    (encoder / 'vocab.txt').write_text('\n'.join(vocab) + '\n')
    tokenizer = BertTokenizerFast(str(encoder / 'vocab.txt'), model_max_length=10)
    model = BertForMaskedLM(BertConfig(vocab_size=len(vocab), **sizes))
  else:
    # Byte-level BPE without merges; the model has more rows than the tokenizer has tokens.
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = ['<s>', '<pad>', '</s>', '<unk>', *letters, '<mask>']
    (encoder / 'vocab.json').write_text(json.dumps({token: id for id, token in enumerate(vocab)}))
    (encoder / 'merges.txt').write_text('#version: 0.2\n')
    tokenizer = RobertaTokenizerFast(
        str(encoder / 'vocab.json'), str(encoder / 'merges.txt'), model_max_length=10)
    model = RobertaForMaskedLM(RobertaConfig(
        vocab_size=len(vocab) + 3, pad_token_id=1, bos_token_id=0, eos_token_id=2, **sizes))
  torch.nn.init.normal_(model.get_output_embeddings().bias)
  model.save_pretrained(encoder)
  tokenizer.save_pretrained(encoder)
  modules = [library.Transformer(str(encoder), transformer_task='fill-mask'),
             library.SpladePooling(pooling, activation)]
  if routed:
    size = len(tokenizer.get_vocab())
    queries = library.SparseStaticEmbedding(tokenizer, torch.rand(size), frozen=True)
    modules = [library.Router.for_query_document([queries], modules)]
  model = SparseEncoder(modules=modules, device='cpu')
  model.save(str(folder), create_model_card=False)
  return model


def write_cross_encoder(folder: pathlib.Path, activation: str) -> Any:
  """Write a cross-encoder with one output, and return the model."""
  from sentence_transformers import CrossEncoder
  import torch
  write_encoder(folder.with_name('encoder'), 16, labels=1)
  model = CrossEncoder(
      str(folder.with_name('encoder')), device='cpu',
      activation_fn=getattr(torch.nn, activation)())
  model.save(str(folder), create_model_card=False)
  return model


def write_fixtures() -> None:
  """Write the stored folders and the library's outputs for them."""
  import torch
  root = pathlib.Path(__file__).parents[1] / 'fixtures' / 'sentence_transformers'
  shutil.rmtree(root, ignore_errors=True)
  root.mkdir()
  model = write_bi_encoder(root / 'bi_encoder', 'all')
  # The first dense layer as earlier releases saved it.
  dense = root / 'bi_encoder' / '2_Dense'
  torch.save(model[2].state_dict(), dense / 'pytorch_model.bin')
  (dense / 'model.safetensors').unlink()
  queries, documents = model.encode_query(TEXTS), model.encode_document(TEXTS)
  values = {
      'texts': TEXTS, 'encode': model.encode(TEXTS).tolist(), 'query': queries.tolist(),
      'document': documents.tolist(),
      'similarity': model.similarity(queries[:1], documents)[0].tolist()}
  (root / 'bi_encoder.json').write_text(json.dumps(values) + '\n')
  scorer = write_cross_encoder(root / 'cross_encoder', 'Identity')
  logits = scorer.predict([(QUERY, document) for document in DOCUMENTS]).tolist()
  values = {'query': QUERY, 'documents': DOCUMENTS, 'logits': logits}
  (root / 'cross_encoder.json').write_text(json.dumps(values) + '\n')
  shutil.rmtree(root / 'encoder')


if __name__ == '__main__':
  write_fixtures()
