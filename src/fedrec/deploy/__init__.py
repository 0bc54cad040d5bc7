"""Methods between real machines: nodes with their own data around a server, joined by Flower."""

from fedrec.deploy.extra import require

require("cryptography")  # which signs and masks; its other users would name another extra
