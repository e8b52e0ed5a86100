"""Zero-shot tasks of BabyLM: their files, which tokens are scored, and the scores, counted by
hand."""
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from experiments.babylm import zero_shot
from experiments.babylm.zero_shot import RankedItem, RankedResult, ScoredPart
from plm_jax.errors import ConfigError
from plm_jax.evaluation.scoring import Scorer
from plm_jax.sources.lines import SourceError
from plm_jax.tokenizers import train_byte_bpe, train_wordpiece

TEXT = "It's a café. They can't fly, said the bird — can the bird fly? naïve 文本"
ROWS = {
    'blimp_filtered/wh_island': {
        'sentence_good': 'Who flies?', 'sentence_bad': 'Who fly?', 'field': 'syntax_semantics',
        'UID': 'island',
        'linguistics_term': 'island_effects'},
    'supplement_filtered/turn_taking': {'sentence_good': 'A: Fly?', 'sentence_bad': 'B: Fly?'},
    'ewok_filtered/agent': {
        'Domain': 'agent-properties', 'Context1': 'The bird can fly.',
        'Context2': 'The bird is ill.',
        'Target1': 'It flies.', 'Target2': 'It walks.', 'ContextType': 'direct',
        'ContextDiff': 'antonym',
        'TargetDiff': 'concept swap'},
    'comps/comps_wugs_dist-before': {
        'prefix_acceptable': 'A bird', 'prefix_unacceptable': 'A fish',
        'property_phrase': 'can fly.'},
    'entity_tracking/regular': {
        'input_prefix': 'Box 1 contains', 'options': [' the bird.', ' the fish.', ' nothing.'],
        'numops': 2},
    'wug_adj_nominalization/wug_adj_nominalization': {'sentences': 'birdity\tbirdness',
                                                      'ratio': '0.25'}}
ITEMS = {
    'wh_island': (('Who flies?', 'Who fly?'), ('Who flies?', 'Who fly?'), 'island'),
    'turn_taking': (('A: Fly?', 'B: Fly?'), ('A: Fly?', 'B: Fly?'), 'turn_taking'),
    'agent': (('The bird can fly. It flies.', 'The bird can fly. It walks.'),
              (' It flies.', ' It walks.'),
              'agent-properties'),
    'comps_wugs_dist-before': (('A bird can fly.', 'A fish can fly.'), ('can fly.', 'can fly.'),
                               'wugs_dist_before'),
    'regular': (('Box 1 contains the bird.', 'Box 1 contains the fish.', 'Box 1 contains nothing.'),
                (' the bird.', ' the fish.', ' nothing.'), 'regular_2_ops'),
    'wug_adj_nominalization': (('birdity', 'birdness'), ('birdity', 'birdness'), 'wug_adj')}


@pytest.fixture
def folder(tmp_path):
  for name, row in ROWS.items():
    file = tmp_path / f'{name}.jsonl'
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(row) + '\n')
  return tmp_path


def test_files_of_the_challenge(folder):
  found = zero_shot.find_datasets(folder)
  assert sorted(found) == sorted({name.partition('/')[0] for name in ROWS})
  for name in ROWS:
    home, _, file = name.partition('/')
    item, = zero_shot.read_items(folder / home, found[home])
    assert (item.texts, item.completions, item.subset) == ITEMS[file]
    assert item.ratio == 0.25 if file.startswith('wug') else math.isnan(item.ratio)
  item, = zero_shot.read_items(folder / 'blimp_filtered', 'blimp')
  assert item.groups == (('field', 'syntax/semantics'), ('linguistics_term', 'island_effects'))


def test_wrong_items_are_reported(folder, tmp_path):
  with pytest.raises(SourceError,
                     match=r"agent.jsonl:1: not an item of the BabyLM task comps: KeyError"):
    zero_shot.read_items(folder / 'ewok_filtered', 'comps')
  with pytest.raises(SourceError, match=r'has no .jsonl file with items of the task comps'):
    zero_shot.read_items(folder / 'nowhere', 'comps')
  (tmp_path / 'empty').mkdir()
  with pytest.raises(ConfigError, match='empty has none of the folders blimp_filtered'):
    zero_shot.find_datasets(tmp_path / 'empty')


def test_limit_is_per_subset(tmp_path):
  rows = [ROWS['entity_tracking/regular'] | {'numops': n % 2} for n in range(8)]
  (tmp_path / 'regular.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  items = zero_shot.read_items(tmp_path, 'entity_tracking', limit=3)
  assert [item.subset for item in items] == ['regular_0_ops', 'regular_1_ops'] * 3


@pytest.mark.parametrize('kind', ['wordpiece', 'byte-bpe', 'gpt2'])
def test_a_token_that_overlaps_with_the_completion_belongs_to_it(kind):
  """The rule of the challenge's dataset.py, with the ends that the tokenizers library gives."""
  if kind == 'wordpiece':
    tokenizer = train_wordpiece([TEXT] * 9, 90)
  else:
    tokenizer = train_byte_bpe([TEXT] * 9, 290, layout='gpt2' if kind == 'gpt2' else 'bert')
  library: tokenizers.Tokenizer = tokenizer.assemble()
  encoded = library.encode(TEXT, add_special_tokens=False)
  parts = [ScoredPart(TEXT, start) for start in range(len(TEXT) + 1)]
  ids, firsts = zero_shot.encode_parts(tokenizer, parts)
  assert ids[0] == encoded.ids
  for part, first in zip(parts, firsts, strict=True):
    scored = [number for number, (_, end) in enumerate(encoded.offsets) if end > part.start]
    assert list(range(first, len(encoded.ids))) == scored, TEXT[part.start:]


class Letters:
  """Tokens are characters: a .. z are 1 .. 26; a text begins with 27."""

  class vocab:
    size, pad, bos, eos, cls, sep, mask = 29, 0, 27, 27, 27, 27, 28
    specials = 0, 27, 28

  byte_lengths = np.ones(29, int)

  def encode_with_offsets(self, texts):
    flat = [ord(letter) - ord('a') + 1 for text in texts for letter in text]
    places = [place for text in texts for place in range(len(text))]
    return np.array(flat), np.array([len(text) for text in texts]), np.array(places)


@pytest.mark.parametrize('start', [True, False])
def test_causal_scores(start):
  """The next token by the last one."""
  table = np.random.default_rng(0).normal(size=(29, 29)).astype(np.float32)
  def logits(params, batch):
    return jnp.take_along_axis(params[batch['tokens']], batch['positions'][..., None], 1)
  scorer = Scorer(logits, jnp.asarray(table), Letters(), length=16, start=start)  # pyright: ignore
  parts = [ScoredPart('abcd', 0), ScoredPart('abcd', 2), ScoredPart('abcd', 4), ScoredPart('e', 0)]
  found = zero_shot.score_causal(scorer, parts)
  log_softmax = table.astype(float) - np.log(np.exp(table.astype(float)).sum(1, keepdims=True))
  first = log_softmax[27, 1] if start else 0
  steps = [log_softmax[1, 2], log_softmax[2, 3], log_softmax[3, 4]]
  alone = log_softmax[27, 5] if start else 0
  np.testing.assert_allclose(found, [first + sum(steps), sum(steps[1:]), 0, alone], rtol=1e-5)
  # A model of 16 tokens predicts two of a text of 24: a window of 17 tokens has them and what
  # precedes them.
  with pytest.warns(UserWarning,
                    match=r'1 of 2 texts were too long and were truncated, \d+\.\d% of all tokens'):
    long, short = zero_shot.score_causal(scorer, [ScoredPart('abcd' * 6, 22),
                                                  ScoredPart('abcd', 2)])
  assert long == pytest.approx(short, rel=1e-5)


def results(*scores: tuple[str, list[float]]):
  return [RankedResult(RankedItem(('good', 'bad', 'worse')[:len(some)], ('g', 'b', 'w')[:len(some)],
                                  name), tuple(some))
          for name, some in scores]


def test_accuracies_of_subsets_are_averaged():
  found = zero_shot.summarize(
    results(('a', [-1.0, -2.0]), ('a', [-2.0, -1.0]), ('a', [-2.0, -2.0]), ('b', [-3.0, -1.0])),
    'blimp')
  assert found == (pytest.approx(100 * (2 / 3 + 0) / 2), {'a': pytest.approx(200 / 3), 'b': 0}, 4)


def test_entity_tracking_averages_its_splits():
  right, wrong = [-1.0, -2.0, -3.0], [-1.0, -2.0, -0.5]
  found = zero_shot.summarize(results(
      ('regular_0_ops', right), ('regular_1_ops', wrong), ('regular_2_ops', wrong),
      ('ambiref_0_ops', right)),
      'entity_tracking')
  assert found.score == pytest.approx((100 / 3 + 100) / 2)
  with pytest.raises(SourceError,
                     match=r'entity tracking has the files regular.jsonl, .* got the subsets '
                           r'others_0_ops'):
    zero_shot.summarize(results(('others_0_ops', right)), 'entity_tracking')


def test_wugs_are_correlated_with_people():
  """Ranks 1, 3, 2, 4 against 1, 2, 3, 4: 1 - 6 * 2 / (4 * 15)."""
  def wug(difference, ratio):
    return RankedResult(RankedItem(('ity', 'ness'), ('ity', 'ness'), 'wug_adj', ratio=ratio),
                        (difference, 0.0))
  some = [wug(-2.0, 0.1), wug(1.0, 0.2), wug(-1.0, 0.3), wug(3.0, 0.4)]
  assert zero_shot.summarize(some, 'wug_adj').score == pytest.approx(0.8)
  assert zero_shot.summarize(some[:1], 'wug_adj').score is None
  assert zero_shot.first_probability(some[1]) == pytest.approx(math.e / (1 + math.e))
  line, *_ = zero_shot.format_predictions(some, 'wug_adj')['wug_adj']['predictions']
  assert line == {'id': 'wug_adj_0', 'pred': 'ness', 'prob': pytest.approx(1 / (1 + math.e ** 2))}


def test_predictions_are_completions_but_for_comps():
  some = results(('base', [-1.0, -2.0]), ('base', [-2.0, -1.0]))
  assert zero_shot.format_predictions(some, 'ewok') == {
      'base': {'predictions': [{'id': 'base_0', 'pred': 'g'}, {'id': 'base_1', 'pred': 'b'}]}}
  assert [line['pred'] for line in zero_shot.format_predictions(some, 'comps')['base'][
      'predictions']] == ['good', 'bad']
