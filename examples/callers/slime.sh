#!/bin/sh
# slime: `sh slime.sh` and the arguments of your training. The answer is the reward itself, or an object if the URL names
# slime's --reward-key. Without --apply-chat-template slime sends chat messages, which need no --compat-template.
export CORL_API_KEY=sesame
corl judge --model meta-llama/Llama-3.2-1B-Instruct --frozen --port 8101 --compat-template chatml &

python train.py "$@" --rm-type remote_rm --reward-key score \
    --rm-url 'http://any:sesame@127.0.0.1:8101/compat/slime/score?reward_key=score&samples=16'
