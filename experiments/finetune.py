"""Fine-tune on any task: `python -m experiments.finetune --init=FOLDER --task=NAME`.

FOLDER is a run or a checkpoint of transformers. `--help` without --task lists the tasks. GLUE,
question answering, named entities and multiple choice have commands of their own: finetune_glue,
finetune_squad, finetune_ner, finetune_choice.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start()
