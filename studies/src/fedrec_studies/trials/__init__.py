"""What a deployment withstands, holds and hides, brought about and measured."""
