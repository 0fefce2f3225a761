"""The sums before a training run: config -> plan -> estimate -> verdict -> lowering, and the record afterwards.

Each module imports only downward (checked by import-linter, see pyproject.toml):

    bill                    one call: plan in, estimate, verdict and lowered plan out
    report                  the text and JSON of a bill, the table estimated | actual
    lowering                the three lowerings
    verdict, checks         budgets and machine held against the estimate
    estimate                memory, step time, wall time, money, energy, value
    memory, step_time, duration, cost, value
    params                  parameter counts
    calibration, record     what earlier runs measured
    resolve                 config + machine + catalog -> plan
    plan, planfile          the frozen plan and its JSON
    machine, dataset        the only modules that look at this computer
    catalog                 cards, prices, tariffs
    units, errors, band
"""
