#!/bin/sh
# What mmdebstrap's hooks do: bootstrap.sh STAGE ROOT. WAKEFUL_CACHE and WAKEFUL_USER come by the environment.
set -eu
stage=$1
root=$2

locked() {
	mkdir -p "$WAKEFUL_CACHE/archives" "$WAKEFUL_CACHE/lists"
	exec 9>"$WAKEFUL_CACHE/lock"
	flock -w 120 9
}

case $stage in
setup)
	# /bin and its like are links from the start, so that usrmerge, which needs all of perl, has nothing to do
	for dir in bin sbin lib lib64; do
		mkdir -p "$root/usr/$dir"
		ln -s "usr/$dir" "$root/$dir"
	done
	mkdir -p "$root/etc/apt/preferences.d"
	printf 'Package: usrmerge\nPin: release *\nPin-Priority: -1\n' >"$root/etc/apt/preferences.d/wakeful-build"
	# packages and lists of earlier builds: apt downloads only what is newer
	locked
	mkdir -p "$root/var/cache/apt/archives" "$root/var/lib/apt/lists"
	for deb in "$WAKEFUL_CACHE"/archives/*.deb; do
		if [ -e "$deb" ]; then
			ln "$deb" "$root/var/cache/apt/archives/" 2>/dev/null || cp "$deb" "$root/var/cache/apt/archives/"
		fi
	done
	cp -p --reflink=auto "$WAKEFUL_CACHE"/lists/*_* "$root/var/lib/apt/lists/" 2>/dev/null || :
	;;
extract)
	# from here on dpkg leaves out what nobody reads in a sandbox; some packages want the directories to be there
	mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
	printf 'path-exclude=%s\n' '/usr/share/doc/*' '/usr/share/info/*' '/usr/share/locale/*' '/usr/share/man/*' \
		>"$root/etc/dpkg/dpkg.cfg.d/wakeful"
	printf 'path-include=%s\n' '/usr/share/doc/*/copyright' '/usr/share/locale/locale.alias' \
		>>"$root/etc/dpkg/dpkg.cfg.d/wakeful"
	;;
customize)
	locked
	for deb in "$root"/var/cache/apt/archives/*.deb; do
		kept=$WAKEFUL_CACHE/archives/${deb##*/}
		if [ -e "$deb" ] && ! [ "$deb" -ef "$kept" ]; then
			ln -f "$deb" "$kept" 2>/dev/null || { cp "$deb" "$kept.new" && mv "$kept.new" "$kept"; }
		fi
	done
	find "$WAKEFUL_CACHE/archives" -type f -atime +30 -mtime +30 -delete
	rm -rf "$WAKEFUL_CACHE/lists.new"
	mkdir "$WAKEFUL_CACHE/lists.new"
	cp -p --reflink=auto "$root"/var/lib/apt/lists/*_* "$WAKEFUL_CACHE/lists.new/"
	rm -rf "$WAKEFUL_CACHE/lists"
	mv "$WAKEFUL_CACHE/lists.new" "$WAKEFUL_CACHE/lists"
	exec 9>&-

	# all else inside, where no link can lead out
	exec chroot "$root" /bin/sh -s "$WAKEFUL_USER" <<'INSIDE'
set -eu
user=$1
rm -f /etc/apt/preferences.d/wakeful-build /etc/apt/apt.conf.d/99mmdebstrap /etc/dpkg/dpkg.cfg.d/99mmdebstrap
rm -rf /usr/share/info/* /usr/share/man/* /var/cache/debconf/*-old /var/lib/dpkg/*-old
find /usr/share/locale -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
find /usr/share/doc -type f ! -name copyright -delete
find /usr/share/doc -mindepth 1 -depth -type d -empty -delete
for n in 1 2 3 4 5 6 7 8; do mkdir -p "/usr/share/man/man$n"; done

# plain files, whatever a package made of them
rm -f /etc/hostname /etc/hosts /etc/resolv.conf /etc/machine-id /var/lib/dbus/machine-id
echo wakeful >/etc/hostname
printf '127.0.0.1\tlocalhost\n127.0.1.1\twakeful\n::1\tlocalhost ip6-localhost ip6-loopback\n' >/etc/hosts
: >/etc/resolv.conf
: >/etc/machine-id

if [ "$user" != root ]; then
	useradd --uid 1000 --user-group --create-home --shell /bin/bash "$user"
	printf '%s ALL=(ALL:ALL) NOPASSWD: ALL\n' "$user" >/etc/sudoers.d/wakeful
	chmod 0440 /etc/sudoers.d/wakeful
	visudo -cqf /etc/sudoers
fi
INSIDE
	;;
*)
	echo "unknown stage $stage" >&2
	exit 2
	;;
esac
