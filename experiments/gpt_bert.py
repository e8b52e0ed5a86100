"""python -m experiments.gpt_bert --size=strict: the door to plm_jax/recipes/gpt_bert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('gpt_bert')
