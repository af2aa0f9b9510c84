# Connects, and does what it is told. An order has 16 bytes: a letter and a size.
use strict; use Socket qw(:DEFAULT IPPROTO_TCP TCP_NODELAY);
my ($host, $port) = @ARGV;
socket(my $s, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
connect($s, sockaddr_in($port, inet_aton($host))) or die "connect: $!";
setsockopt($s, IPPROTO_TCP, TCP_NODELAY, 1) or die "nodelay: $!";
my $full = 65536; my $chunk = 'x' x $full; my $got;
while (1) {
    my $order = '';
    while (length $order < 16) { sysread($s, $order, 16 - length $order, length $order) or exit 0 }
    my ($what, $left) = unpack 'a1 a15', $order;
    if ($what eq 's') {
        while ($left > 0) { $left -= syswrite($s, $chunk, $left < $full ? $left : $full) || exit 0 }
        next;
    }
    if ($what eq 't') {
        while ($left > 0) { $left -= sysread($s, $got, $left < $full ? $left : $full) || exit 0 }
    }
    syswrite($s, $order) or exit 0;
}
