"""Hand-made models that have learned a task: their predictions follow from reading the text.

Word vectors are one-hot, and attention averages over a row, so the first token contains the set of
words. 'fine' is good and 'dull' is bad; 'angela merkel' is a person, 'berlin' a place; the person
is the answer to all questions.
"""
import jax
import jax.numpy as jnp
import tiny

from plm_jax import validation
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.multilabel import MultiLabelTask
from plm_jax.tasks.multiple_choice import ChoiceTask
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.reranking import RerankTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TaggingTask
from plm_jax.tokenizers import WordPiece

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'fine', 'dull', 'angela', 'merkel',
          'berlin', 'a', 'film',
          'came', 'to', 'who', '?', '.', '##s', *'bcdefghijklmno']
WIDTH = len(PIECES)
assert WIDTH == 32
TASKS = {
    'classification': SequenceTask(labels=('bad', 'good')), 'regression': SequenceTask(
        regression=True, measures=('pearson',)),
    'tagging': TaggingTask(labels=('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC')),
    'answers': AnswerTask(stride=8, question_length=8), 'choice': ChoiceTask(),
    'multilabel': MultiLabelTask(labels=('bad', 'good', 'place')), 'rerank': RerankTask()}
# Of a kind of task: (word, class) -> how much the head makes of it.
SAID = {
    'classification': {('fine', 1): 3.0, ('dull', 0): 3.0},
    'regression': {('fine', 0): 1.0, ('dull', 0): -1.0},
    'tagging': {('angela', 1): 1.0, ('merkel', 2): 1.0, ('berlin', 3): 1.0},
    'answers': {('angela', 0): 1.0, ('merkel', 1): 1.0}, 'choice': {('fine', 0): 3.0},
    'multilabel': {('dull', 0): 9.0, ('fine', 1): 9.0, ('berlin', 2): 9.0},
    'rerank': {('fine', 0): 9.0, ('dull', 0): -9.0}}


def trained(kind: str) -> LoadedModel:
  """Makes the model of a kind of task."""
  task = TASKS[kind]
  model = validation.with_paths(tiny.config(layers=1), {'vocab': WIDTH})
  objective = TaskObjective(task)
  shapes = jax.eval_shape(objective.build(model, False).init, jax.random.key(0),
                          objective.shapes(2, 8))
  params = jax.tree_util.tree_map_with_path(filled, tiny.unbox(shapes)['params'])
  head = params[f'heads_{task.head}']['dense']
  for (word, place), value in SAID[kind].items():
    head['kernel'] = head['kernel'].at[PIECES.index(word), place].set(value)
  if kind == 'tagging':
    head['bias'] = head['bias'].at[0].set(1.5)
  if kind == 'multilabel':
    head['bias'] -= 1.5
  return LoadedModel('bert', model, task.heads(model), params, WordPiece(PIECES),
                     labels=task.labels, task=task,
                 length=24)


def filled(path, x):
  """Fill a leaf: identities to pass vectors through, zeros for layers without effect, ones for
  scales."""
  name = '/'.join(entry.key for entry in path)
  if name.endswith('scale'):
    return jnp.ones(x.shape)
  if name.endswith(('embeddings/tokens', 'pooler/kernel', 'value/kernel', 'out/kernel')):
    return jnp.eye(WIDTH).reshape(x.shape)
  return jnp.zeros(x.shape)
