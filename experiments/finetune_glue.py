"""Fine-tune on GLUE with published hyperparameters: `python -m experiments.finetune_glue`.

    python -m experiments.finetune_glue --init=FOLDER --task=mnli

--task is cola, sst2 (the default), mrpc, stsb, qqp, mnli, qnli, rte or wnli. Data comes from TFDS,
or from GLUE's own .tsv files with --train and --dev. For BERT the settings are learning rate 2e-5,
3 epochs (MRPC 5), batch size 32, sequence length 128; `plm_jax.recipes.hyperparameters` has those
of other models. --seeds=5 gives mean and standard deviation: on RTE, MRPC and CoLA single runs
differ by points.

Published, development sets: BERT base (cased, mean of 5 seeds) MNLI 83.80, QNLI 90.82, QQP 90.76,
RTE 64.76, SST-2 92.23, MRPC F1 88.97, CoLA 59.04, STS-B 88.94; BERT large 86.6, 92.3, 91.3, 70.4,
93.2, 88.0, 60.6, 90.0; RoBERTa base 87.6, 92.8, 91.9, 78.7, 94.8, 90.2, 63.6, 91.2; ELECTRA base
88.8, 93.2, 91.5, 82.7, 95.1, 89.5, 67.7, 91.2. For RTE, STS-B and MRPC, RoBERTa and DeBERTa start
from a model that was fine-tuned on MNLI: give that run as --init.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('sst2', about=__doc__ or '')
