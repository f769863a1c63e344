"""`python -m mindspeed`: what this build is made of and which options it has."""

from mindspeed.core.options.status import status

if __name__ == "__main__":
    print(status())
