"""python -m experiments.bert_wwm --size=base: the door to plm_jax/recipes/bert_wwm.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('bert_wwm')
