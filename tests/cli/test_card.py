"""The README.md of an exported model."""
import dataclasses

from plm_jax import recipes
from plm_jax.cli import card


def test_a_card_says_how_a_model_came_about(tmp_path):
  bert = recipes.find('bert_base')('laptop')
  bert = dataclasses.replace(bert, data=dataclasses.replace(bert.data, path=('/home/someone/texts/mine.txt', 'gs://b/more/')))
  told = card.card(bert, {'mlm': 2.5, 'mlm_accuracy': 0.5}, 'bert', ('encode', 'fill_mask'), 1_234_567)
  front, _, text = told.removeprefix('---\n').partition('---\n')
  assert front == 'library_name: transformers\npipeline_tag: fill-mask\ntags:\n- plm_jax\n'
  assert 'A bert of 1,234,567 parameters, pre-trained with plm_jax ' in text and '`bert_base`' in text
  for line in ('| Steps | 2,000 |', '| Tokens read | 4,096,000 |', '| Text | `mine.txt`, `more` |',
               '| Learned | masked-token, next-sentence |', '| Held-out masked-token loss | 2.500 |',
               '| Held-out masked-token accuracy | 50.0% |'):
    assert line in text.splitlines()
  assert 'someone' not in told
  assert card.of_run(str(tmp_path), 'bert', (), 0) == ''
