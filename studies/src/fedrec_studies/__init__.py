"""The studies behind the claims: papers reproduced, methods compared, speed and deployments measured."""

__version__ = "0.2.0.dev0"
