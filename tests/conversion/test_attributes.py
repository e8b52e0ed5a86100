"""Heads of tasks in files: names of classes, dropout, what transformers' classes call the rest."""
import json

import backbones
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tokenizers

import plm_jax
from plm_jax import conversion, validation
from plm_jax.architectures import Output
from plm_jax.errors import ConfigError
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.models import gpt2, llama, t5
from plm_jax.tasks.input_formats import get_input_format
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TaggingTask
from plm_jax.tokenizers import train_byte_bpe, train_sentencepiece, train_wordpiece

files = pytest.importorskip('safetensors.numpy')

BATCH = {name: jnp.ones((1, 8), jnp.int32)
         for name in ('tokens', 'segments', 'decoder_tokens', 'decoder_segments')}


def saved(folder, family, model, head, labels=(), classes=3):
  """An export with random parameters -> the contents of its config.json."""
  heads = {head: conversion.build_head(family, head, model, classes)}
  shapes = jax.eval_shape(ModelWithHeads(model.backbone(), heads).init, jax.random.key(0),
                          BATCH)['params']
  params = tiny.random_params(shapes)
  conversion.save(folder, model, params, like=conversion.ExportTemplate(family, labels))
  return params, json.loads((folder / 'config.json').read_text())


def test_names_of_classes_are_written_and_read(tmp_path):
  _, said = saved(tmp_path / 'a', 'bert', tiny.config(), 'label', ('no', 'maybe', 'yes'))
  assert said['architectures'] == ['BertForSequenceClassification']
  assert said['id2label'] == {'0': 'no', '1': 'maybe', '2': 'yes'} and said['label2id']['yes'] == 2
  assert said['problem_type'] == 'single_label_classification'
  assert conversion.load(tmp_path / 'a').labels == ('no', 'maybe', 'yes')
  _, said = saved(tmp_path / 'b', 'bert', tiny.config(), 'label', classes=1)
  assert said['problem_type'] == 'regression' and said['id2label'] == {'0': 'LABEL_0'}
  for names in (('no', 'yes'), ('no', 'yes', 'no')):
    with pytest.raises(conversion.ConvertError,
                       match='the head has 3 classes, for which there are 2 names'):
      saved(tmp_path / 'c', 'bert', tiny.config(), 'tags', names)


def test_number_of_classes_without_names(tmp_path):
  """Files edited by hand state `num_labels` alone, for which transformers makes names."""
  _, said = saved(tmp_path / 'a', 'bert', tiny.config(), 'label', ('no', 'maybe', 'yes'))
  del said['id2label'], said['label2id']
  (tmp_path / 'a' / 'config.json').write_text(json.dumps(said | {'num_labels': 3}))
  assert conversion.load(tmp_path / 'a').labels == ('LABEL_0', 'LABEL_1', 'LABEL_2')
  assert plm_jax.load(tmp_path / 'a').task.labels == ('LABEL_0', 'LABEL_1', 'LABEL_2')


def test_regression_with_several_outputs_is_not_predicted(tmp_path):
  _, said = saved(tmp_path / 'a', 'bert', tiny.config(), 'label',
                  ('valence', 'arousal', 'dominance'))
  (tmp_path / 'a' / 'config.json').write_text(json.dumps(said | {'problem_type': 'regression'}))
  trained = plm_jax.load(tmp_path / 'a')
  assert trained.task is None and 'predict' not in trained.capabilities
  with pytest.raises(ConfigError, match=r'has a head \(label\) .* regression with several outputs'):
    plm_jax.predict(trained, ['a text'])


@pytest.mark.parametrize(('attribute', 'rate'), [({}, None), ({'classifier_dropout': None}, None),
                                                 ({'classifier_dropout': 0.25}, 0.25)])
def test_dropout_is_the_classifiers_own(tmp_path, attribute, rate):
  _, said = saved(tmp_path / 'a', 'bert', tiny.config(), 'label')
  (tmp_path / 'a' / 'config.json').write_text(json.dumps(said | attribute))
  imported = conversion.load(tmp_path / 'a')
  assert imported.heads['label'].dropout == rate
  conversion.save(tmp_path / 'b', imported.config, imported.params, like=imported)
  assert json.loads((tmp_path / 'b' / 'config.json').read_text()).get('classifier_dropout') == rate
  (tmp_path / 'a' / 'config.json').write_text(json.dumps(said | {'classifier_dropout': 1.5}))
  with pytest.raises(conversion.ConvertError,
                     match=r'classifier_dropout is 1\.5, expected a share below 1'):
    conversion.load(tmp_path / 'a')


@pytest.mark.parametrize(('family', 'kind', 'rate'), [
    ('bert', 'label', 0.1), ('bert', 'span', 0.0), ('roberta', 'label', 0.1),
    ('distilbert', 'label', 0.2),
    ('distilbert', 'span', 0.1), ('albert', 'label', 0.1), ('xlnet', 'tags', 0.0),
    ('xlnet', 'label', 0.1),
    ('gpt2', 'label', 0.0), ('openai-gpt', 'label', 0.1), ('bart', 'label', 0.0),
    ('llama', 'tags', 0.1)])
def test_published_dropout(family, kind, rate):
  config = conversion.get_family(family).config
  head = conversion.build_head(family, kind, conversion.enable_required_parts(family, kind, config),
                               2)
  assert (config.block.dropout if head.dropout is None else head.dropout) == rate


def test_dropout_follows_the_example_and_not_its_row():
  head = conversion.build_head('roberta', 'label', tiny.config(dropout=0.5), 2)
  draw = np.random.default_rng(0)
  hidden = jnp.asarray(np.repeat(draw.normal(size=(1, 4, 32)), 3, 0), jnp.float32)
  output = Output(hidden, None, jnp.zeros((96, 32)))
  params = tiny.random_params(jax.eval_shape(head.init, jax.random.key(0), output, {})['params'])
  def answers(rows):
    return np.asarray(head.apply({'params': params}, output, {}, rows,
                                 rngs={'dropout': jax.random.key(0)}))
  one, other = answers(jnp.array([0, 1, 2])), answers(jnp.array([2, 0, 1]))
  assert len(np.unique(one, axis=0)) == 3
  np.testing.assert_array_equal(other, one[[2, 0, 1]])
  assert len(np.unique(answers(None), axis=0)) == 1


def test_transformers_classes_that_call_the_backbone_otherwise(tmp_path):
  block = validation.with_paths(llama.llama_7b().block, {'width': 32, 'heads': 4, 'mlp_dim': 64})
  model = llama.llama_7b().resize(block, 1, 96, 16)
  params, said = saved(tmp_path / 'llama', 'llama', model, 'span')
  names = files.load_file(tmp_path / 'llama' / 'model.safetensors')
  assert said['architectures'] == ['LlamaForQuestionAnswering']
  assert {name.partition('.')[0] for name in names} == {'transformer', 'qa_outputs'}
  tiny.assert_same(conversion.load(tmp_path / 'llama').params, params)


def test_token_classification_of_t5_uses_only_the_encoder(tmp_path):
  """T5ForTokenClassification has no decoder."""
  block = validation.with_paths(t5.small().block,
                                {'width': 32, 'heads': 4, 'head_size': 8, 'mlp_dim': 64})
  params, said = saved(tmp_path / 't5', 't5', t5.small().resize(block, 1, 96, 16), 'tags')
  names = files.load_file(tmp_path / 't5' / 'model.safetensors')
  assert said['architectures'] == ['T5ForTokenClassification']
  assert not any('decoder' in name for name in names) and 'transformer.shared.weight' in names
  imported = conversion.load(tmp_path / 't5')
  assert imported.config.decoder.layers == 0
  tiny.assert_same(imported.params['heads_tags'], params['heads_tags'])


def test_auxiliary_language_modeling_heads_are_not_exported():
  params = dict.fromkeys(('backbone', 'heads_label', 'heads_lm'))
  assert conversion.exportable_params('llama', params) == ({'backbone': None, 'heads_label': None},
                                                           ['lm'])
  params = dict.fromkeys(('backbone', 'heads_choice', 'heads_lm'))
  assert conversion.exportable_params('gpt2', params) == (params, [])


def test_exported_tokenizers_of_decoders_make_the_same_rows(tmp_path):
  tokenizer = train_byte_bpe(['a quick brown fox'], 270, layout='gpt2')
  model = gpt2.small().resize(tiny.block(norm_at='pre'), 1, tokenizer.vocab.size, 16)
  heads = {'label': conversion.build_head('gpt2', 'label', model, 2)}
  shapes = jax.eval_shape(ModelWithHeads(model.backbone(), heads).init, jax.random.key(0),
                          BATCH)['params']
  form = get_input_format('gpt2')
  like = conversion.ExportTemplate('gpt2', (), form.special_ids(tokenizer.vocab))
  conversion.save(tmp_path / 'a', model, tiny.random_params(shapes), tokenizer, like=like)
  texts = ['a fox', 'quick']
  row = form.make_row(tokenizer.encode_batch(texts), tokenizer.vocab, 16)
  assert tokenizers.Tokenizer.from_file(str(tmp_path / 'a' / 'tokenizer.json')).encode(
      *texts).ids == row.tokens
  assert conversion.load(tmp_path / 'a').tokenizer.encode(texts[0]) == tokenizer.encode(texts[0])


@pytest.mark.parametrize(('family', 'separators', 'own'), [
    ('deberta', 2, True), ('roberta', 3, True), ('bert', 2, False)])
def test_an_exported_tokenizer_makes_the_pairs_of_its_family(tmp_path, family, separators, own):
  """transformers' classes for byte-level BPE put two separators between texts, those for
  WordPiece one, independent of the model: DeBERTa has one separator, and RoBERTa two, the second
  without another type."""
  text = ['a quick brown fox']
  tokenizer = train_byte_bpe(text, 280,
                             layout='bert') if family == 'deberta' else train_wordpiece(text, 60)
  model = backbones.small(family, tokenizer.vocab.size, 16)
  params = tiny.random_params(jax.eval_shape(model.backbone().init, jax.random.key(0),
                                             BATCH)['params'])
  plm_jax.export(LoadedModel(family, model, {}, {'backbone': params}, tokenizer), tmp_path / 'a')
  texts = ['a fox', 'quick']
  row = get_input_format(family).make_row(tokenizer.encode_batch(texts), tokenizer.vocab, 16)
  made = tokenizers.Tokenizer.from_file(str(tmp_path / 'a' / 'tokenizer.json')).encode(*texts)
  assert made.ids == row.tokens and row.tokens.count(tokenizer.vocab.sep) == separators
  assert made.type_ids == (row.token_types if family == 'bert' else [0] * len(row.tokens))
  said = json.loads((tmp_path / 'a' / 'tokenizer_config.json').read_text())
  assert (said['tokenizer_class'] == 'PreTrainedTokenizerFast') is own
  assert (said.get('model_input_names') == ['input_ids', 'attention_mask']) is own
  assert said['mask_token'] == tokenizer.pieces[tokenizer.vocab.mask]


@pytest.mark.parametrize('family', ['albert', 'xlnet'])
def test_an_exported_sentencepiece_gives_segment_types(tmp_path, family):
  """XLNet's <cls> has the type 2, after all texts."""
  tokenizer = train_sentencepiece(['a quick brown fox'] * 20, 40, layout=family)
  model = backbones.small(family, tokenizer.vocab.size, 16)
  heads = {'label': conversion.build_head(family, 'label', model, 2)}
  shapes = jax.eval_shape(ModelWithHeads(model.backbone(), heads).init, jax.random.key(0),
                          BATCH)['params']
  form = get_input_format(family)
  frame = form.special_ids(tokenizer.vocab)
  like = conversion.ExportTemplate(family, (), frame)
  conversion.save(tmp_path / 'a', model, tiny.random_params(shapes), tokenizer, like=like)
  texts = ['a fox', 'quick']
  row = form.make_row(tokenizer.encode_batch(texts), tokenizer.vocab, 16)
  made = tokenizers.Tokenizer.from_file(str(tmp_path / 'a' / 'tokenizer.json')).encode(*texts)
  assert (made.ids, made.type_ids) == (row.tokens, row.token_types)
  said = json.loads((tmp_path / 'a' / 'tokenizer_config.json').read_text())
  assert said['model_input_names'] == ['input_ids', 'token_type_ids', 'attention_mask']


def test_head_dropout_comes_from_the_family_or_the_task():
  model = tiny.config()
  assert TaskObjective(TaggingTask(family='gpt2')).heads(gpt2.small())['tags'].dropout == 0.1
  assert TaskObjective(TaggingTask(family='gpt2', head_dropout=0.3)).heads(gpt2.small())[
      'tags'].dropout == 0.3
  task = SequenceTask(head_dropout=0.0, auxiliary=0.5, family='gpt2')
  assert TaskObjective(task).heads(gpt2.small())['label'].dropout == 0.0
  assert SequenceTask().heads(model)['label'].dropout is None  # the block's
