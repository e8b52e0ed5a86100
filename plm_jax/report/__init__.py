"""Reports: report.html, learning curves, error analysis, hints, model cards.

    html            report.html and its charts; pages.css: the style of all pages
    metric_display  titles, units, numbers and axes of metrics
    history         metrics.jsonl as curves
    error_analysis  confusion matrix and worst mistakes of a fine-tuned model
    baselines       comparison with simple baselines
    batch_drawing   model inputs (`objectives.batch_view`) in a terminal and as a page
    hints           what to do after a run; model_card: README.md of an exported model
    environment     command, devices and versions

Modules here may import all packages but `runs`, `api` and `cli`.
"""
