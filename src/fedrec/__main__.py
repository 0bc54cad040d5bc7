"""`python -m fedrec`, and `torchrun --nproc-per-node N -m fedrec run ...` for several processes."""

from fedrec.cli import main

if __name__ == "__main__":
    main()
