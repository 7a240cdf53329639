"""Messages between ingress, unit and workers: msgspec over zmq and stream sockets, no pickle."""
