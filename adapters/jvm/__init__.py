"""What every Java program here needs: a runtime, and locked archives."""
