# HTTP for as many connections as there are: GET /N is answered by N bytes, a POST once its body is there.
use strict; use Socket qw(:DEFAULT IPPROTO_TCP TCP_NODELAY);
my ($host, $port) = @ARGV;
$SIG{PIPE} = 'IGNORE';
socket(my $listener, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
setsockopt($listener, SOL_SOCKET, SO_REUSEADDR, 1);
bind($listener, sockaddr_in($port, inet_aton($host))) or die "bind: $!";
listen($listener, 64) or die "listen: $!";
my $full = 65536; my $chunk = 'x' x $full; my ($got, %open);
sub send_all {
    my ($s, $text) = @_;
    my $at = 0;
    while ($at < length $text) { $at += syswrite($s, $text, length($text) - $at, $at) || return }
}
while (1) {
    my $ready = ''; vec($ready, fileno $listener, 1) = 1; vec($ready, $_, 1) = 1 for keys %open;
    select($ready, undef, undef, undef);
    if (vec($ready, fileno $listener, 1) && accept(my $s, $listener)) {
        setsockopt($s, IPPROTO_TCP, TCP_NODELAY, 1);
        $open{fileno $s} = [$s, ''];
    }
    for my $one (grep { vec($ready, fileno $_->[0], 1) } values %open) {
        my $s = $one->[0];
        unless (sysread($s, $one->[1], $full, length $one->[1])) { delete $open{fileno $s}; next }
        while ($one->[1] =~ s/^(\w+) \/(\d*)(.*?)\r\n\r\n//s) {
            my ($method, $size, $head) = ($1, $2 || 0, $3);
            my $left = $head =~ /^content-length: *(\d+)/mi ? $1 : 0;
            my $here = length $one->[1] < $left ? length $one->[1] : $left;
            substr($one->[1], 0, $here) = ''; $left -= $here;
            while ($left > 0) { $left -= sysread($s, $got, $left < $full ? $left : $full) || last }
            my $start = "HTTP/1.1 200 OK\r\nContent-Length: $size\r\n\r\n";
            if ($size <= $full) { send_all($s, $start . substr($chunk, 0, $size)); next }
            send_all($s, $start);
            while ($size > 0) { $size -= syswrite($s, $chunk, $size < $full ? $size : $full) || last }
        }
    }
}
