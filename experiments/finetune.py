"""python -m experiments.finetune --init=FOLDER --task=NAME: the door to plm_jax/recipes/finetune.py.

FOLDER is that of a run or of a checkpoint of transformers; without --task, --help lists what there is. GLUE, questions,
entities and choices have doors of their own: finetune_glue, finetune_squad, finetune_ner, finetune_choice.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start()
