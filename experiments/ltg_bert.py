"""python -m experiments.ltg_bert --size=strict: the door to plm_jax/recipes/ltg_bert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('ltg_bert')
