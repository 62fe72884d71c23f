#!/bin/sh
# OpenRLHF: `sh openrlhf.sh` and the arguments of your training. Give one URL: with several it sends all samples to the
# first; put a load balancer behind one address instead. Its prompts come rendered in the policy's chat template
# (--data.apply_chat_template), which the judge must know: here ChatML (Qwen).
export CORL_API_KEY=sesame
corl judge --model meta-llama/Llama-3.2-1B-Instruct --frozen --port 8101 --compat-template chatml &

python -m openrlhf.cli.train_ppo_ray "$@" \
    --reward.remote_url 'http://any:sesame@127.0.0.1:8101/compat/openrlhf/get_reward?samples=16&on_unlabeled=zero'
