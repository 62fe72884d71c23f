"""The reward formats of other projects' trainers, over the same judge as `/v1/scores`.

Their clients send one sample a request, know no label that is missing, and retry without an id: see `coalesce` (one
vote a problem, however many ask), `options` (what a caller may choose in its URL) and `rendered` (problems out of
prompts that were rendered in the caller's own chat template).
"""
