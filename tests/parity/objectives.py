"""Run the cases of objectives: exact for given random numbers, otherwise statistics over many
samples."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.objectives import corruption
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import NextSentence, SentenceOrder
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.tokenizers.contract import Vocab

# In the names of outputs that are statistics of the reference's own draws.
SAMPLED = ('frac_', 'mean_pairs', 'freq', 'run_length', 'masked_ratio', 'blocks_per',
           'infilling_', 'token_mask_masks', 'insertion_mask', 'deletion_mean')


def tolerances(want: np.ndarray) -> np.ndarray:
  """Of one array of different statistics: five hundredths of each."""
  return 0.05 * np.abs(want)


def tolerance(want: np.ndarray) -> float:
  """Of statistics over some thousand draws: five hundredths of the largest, two where shares are
  compared."""
  return max(0.02, 0.05 * float(np.abs(want).max()))


def spanbert(case) -> dict[str, np.ndarray]:
  """Sentences and spans are given by the case itself; statistics are over sentences of 200
  tokens."""
  case.about['hparams'].asked |= {'seed'}  # of draws, which are given or counted
  targets = case.about['hparams']['max_pair_targets']
  objective = SpanBoundary(targets=targets)
  lengths = np.array(objective.lengths, np.float32)
  got = {'len_distribution_1to10': lengths,
         'mean_span_length_words': lengths @ np.arange(1, 11, dtype=np.float32)}
  for name in [name for name in case.outputs if name.startswith('sentence.')]:
    number = name.partition('.')[2]
    sentence, spans = case.outputs[name], case.outputs[f'spans.{number}']
    got |= {f'{output}.{number}': x
            for output, x in given_spans(objective, sentence, spans).items()}
  return got | statistics(objective, rows=8000, length=200)


def given_spans(objective, sentence, spans, pad=1):
  """Their targets and pairs, from the positions and labels of ours."""
  at = np.arange(len(sentence))
  chosen = ((at >= spans[:, :1]) & (at <= spans[:, 1:])).any(0)
  predict = jax.jit(functools.partial(objective.predict, most=len(sentence)))
  found = jax.device_get(predict(jnp.array(sentence), jnp.ones(len(sentence), jnp.int32),
                                 jnp.array(chosen)))
  found = {name: x[found['weights'] > 0] for name, x in found.items()}
  target = np.full(len(sentence), pad)
  target[found['positions']] = found['labels']
  first, last = jax.device_get(corruption.run_bounds(jnp.array(chosen)))
  pairs = {}
  for left, right, label, keep in zip(*(found[n] for n in ('left', 'right', 'labels', 'boundary')),
                                      strict=True):
    if keep:
      pairs.setdefault((left, right), []).append(label)
  padded = [[*pair, *labels, *[pad] * (objective.targets - len(labels))]
            for pair, labels in pairs.items()]
  return {'sentence': sentence, 'spans': spans, 'target': target, 'pair_targets': np.array(padded),
          'merged_spans': np.unique(np.stack([first, last], 1)[chosen], axis=0)}


def statistics(objective, rows, length):
  """As the reference counted them: every fourth id continues a word, and the budget may end inside
  one."""
  vocab = Vocab(1000, mask=0)
  number = int(np.ceil(round(objective.mask_rate * length, 4)))

  @jax.jit
  @jax.vmap
  def draw(key):
    keys = jax.random.split(key, 3)
    tokens = jax.random.randint(keys[0], (length,), 5, vocab.size)
    words = jnp.cumsum((tokens % 4 != 0) | (jnp.arange(length) == 0))
    chosen = corruption.draw_spanbert_spans(keys[1], words, number, objective.lengths, 64,
                                            whole=False)
    predicted = objective.predict(tokens, words, chosen, number)
    return tokens, objective.replace(keys[2], tokens, chosen,
                                     vocab), chosen, corruption.run_bounds(chosen), predicted

  tokens, new, chosen, (first, last), predicted = jax.device_get(
      draw(jax.random.split(jax.random.key(0), rows)))
  starts = chosen & (first == np.arange(length))
  sizes = (last - first + 1)[starts]
  pairs = starts & (first > 0) & (last < length - 1)
  assert predicted['boundary'].sum() == np.minimum((last - first + 1)[pairs],
                                                   objective.targets).sum()
  return {
      'masked_tokens_per_200': np.unique(chosen.sum(1)),
      'frac_mask': (new[chosen] == vocab.mask).mean(),
      'frac_kept': (new[chosen] == tokens[chosen]).mean(), 'mean_pairs': pairs.sum(1).mean(),
      'merged_span_token_length_freq_1to20': np.bincount(sizes, minlength=21)[1:21] / len(sizes)}


# Entries of `stats`. The other entries describe the reference's corpus, which the cases do not
# contain: the number and length of its rows, and the number of texts without a second sentence.
# They are masked: not compared.
MASKING = slice(2, 6)  # share of tokens that are predicted; of these: masked, kept, random
PIECES = 405  # ids from here on continue a word
VOCAB = Vocab(505, pad=0, unk=1, cls=2, sep=3, mask=4)


def pairs(case) -> dict[str, np.ndarray]:
  """BERT's and ALBERT's rows: their texts arranged by ours, with the masks that they drew; and what
  ours draws."""
  hyper, want = case.about['hparams'], case.outputs
  # Of the reference's corpus and draws, whose rows are given.
  hyper.asked |= {'corpus_seed', 'seed', 'dupe_factor', 'short_seq_prob', 'max_seq_length'}
  hyper.only(do_permutation=False, spm_model_file=None)
  lengths = 1 / np.arange(1, hyper.get('ngram', 1)
                          + 1)[::1 if hyper.get('favor_shorter_ngram', True) else -1]
  order = hyper.get('random_next_sentence') is False
  objective = MaskedLM(
      pair=SentenceOrder(short=0.0, slack=0) if order
      else NextSentence(random=0.0, short=0.0, slack=0),
      mask_rate=hyper['masked_lm_prob'],
      masking=Distinct('word' if hyper['do_whole_word_mask'] else 'token',
                       tuple(float(x) for x in lengths / lengths.sum())))
  rows = arranged(objective.pair, unmasked(want), want['segment_ids'], want['is_random_next'])
  places = np.where(want['masked_positions'] > 0, want['masked_positions'], 0)
  drawn = np.take_along_axis(want['input_ids'], places, 1)
  ids, labels = rows['tokens'].copy(), np.take_along_axis(rows['tokens'], places, 1)
  for row, at in enumerate(places):
    ids[row, at[at > 0]] = drawn[row, at > 0]
  stats = np.ma.masked_all_like(want['stats'])
  stats[MASKING], runs = masking(objective, rows, hyper['max_predictions_per_seq'])
  return {'input_ids': ids, 'segment_ids': rows['types'],
          'is_random_next': rows[objective.pair.pair_task],
          'masked_positions': np.ma.masked_all_like(want['masked_positions']),
          'masked_labels': np.ma.array(labels, mask=places == 0),
          'stats': stats, 'contiguous_masked_run_length_1to8': runs}


def unmasked(want) -> np.ndarray:
  tokens = want['input_ids'].copy()
  for row, (at, labels) in enumerate(zip(want['masked_positions'], want['masked_labels'],
                                         strict=True)):
    tokens[row, at[at > 0]] = labels[at > 0]
  return tokens


def arranged(pair, tokens, types, answers) -> dict[str, np.ndarray]:
  """Rows of the reference, taken apart and put together again by ours."""
  found = []
  for row, kind, answer in zip(tokens, types, answers, strict=True):
    end = int(np.flatnonzero(row == VOCAB.sep)[-1])
    a, b = row[1:int(kind.argmax()) - 1], row[int(kind.argmax()):end]
    # A different text as B for pairs that do not follow; B before A in one text for swapped pairs.
    if isinstance(pair, SentenceOrder):
      pair, texts = dataclasses.replace(pair, swapped=float(answer)), [[b, a] if answer else [a, b]]
    else:
      texts = [[a], [b]] if answer else [[a, b], [a]]
    windows = jax.tree.map(lambda *x: jnp.stack(x),
                           *[window(text, len(row) - 3, n) for n, text in enumerate(texts)])
    found.append(jax.tree.map(lambda x: x[0],
                              arrange(pair, jax.random.split(jax.random.key(0), len(texts)),
                                      windows)))
  return jax.device_get(jax.tree.map(lambda *x: jnp.stack(x), *found))


@functools.partial(jax.jit, static_argnums=0)
def arrange(pair, keys, windows):
  return pair.arrange(keys, windows, VOCAB)


def window(sentences, length: int, document: int):
  tokens = np.concatenate(sentences)
  pad = lambda x: jnp.asarray(np.pad(x, (0, length - len(tokens))), jnp.int32)
  number = np.repeat(np.arange(1, len(sentences) + 1), [len(sentence) for sentence in sentences])
  return {'tokens': pad(tokens), 'segments': pad(np.ones_like(tokens)), 'sentences': pad(number),
          'words': pad(np.cumsum((tokens < PIECES) | (np.arange(len(tokens)) == 0))),
          'document': jnp.int32(document)}


def masking(objective, rows, predictions: int, draws=2000):
  """-> (shares: predicted of all tokens, of these masked, kept, random; frequencies of runs of 1 to
  8)."""
  most = min(predictions, objective.max_predictions(rows['tokens'].shape[1]))
  @jax.jit
  @functools.partial(jax.vmap, in_axes=(0, None))
  def draw(key, rows):
    keys = jax.random.split(key, rows['tokens'].shape[0])
    return jax.vmap(lambda k, t, s, w: objective.mask_row(k, t, s, w, (most, objective.mask_rate),
                                                          VOCAB))(
        keys, rows['tokens'], rows['segments'], rows['words'])
  found = jax.device_get(draw(jax.random.split(jax.random.key(1), draws), {
      name: jnp.asarray(rows[name]) for name in ('tokens', 'segments', 'words')}))
  keep = found['weights'] > 0
  new = np.take_along_axis(found['tokens'], found['positions'], -1)[keep]
  kept = (new == found['labels'][keep]).mean()
  masked = (new == VOCAB.mask).mean()
  shares = [keep.sum() / (rows['segments'] > 0).sum() / draws, masked, kept, 1 - masked - kept]
  chosen = np.zeros(found['tokens'].shape, bool)
  for at, on, row in zip(found['positions'].reshape(-1, most), keep.reshape(-1, most),
                         chosen.reshape(-1, chosen.shape[-1]), strict=True):
    row[at[on]] = True
  edges = np.diff(np.pad(chosen, ((0, 0), (0, 0), (1, 1))).astype(int), axis=-1)
  sizes = np.nonzero(edges == -1)[-1] - np.nonzero(edges == 1)[-1]
  return np.array(shares), np.bincount(sizes, minlength=9)[1:9] / len(sizes)
